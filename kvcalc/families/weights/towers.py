"""Vision and audio towers, with the projectors behind them. A type that is not here has a tower whose size is not known.

Shapes: transformers 5.24.0, models/*/modeling_*.py.
"""

from collections.abc import Callable
from typing import Final, Literal

from kvcalc.families.config import Config
from kvcalc.families.weights.feedforward import mlp
from kvcalc.families.weights.shapes import Shapes

Tower = Callable[[Shapes, Config, int], bool]
"""Adds a tower of a whole config, before a language model of so many hidden features; false where the config leaves its size open."""


def _encoder(
    shapes: Shapes,
    name: str,
    depth: int,
    hidden: int,
    width: int,
    *,
    heads: int,
    divided: Literal["all", "attention", "none"] = "all",
    bias: bool = True,
    norm_bias: bool = True,
    gated: bool = False,
    kv: int | None = None,
    head_dim: int | None = None,
    k_bias: bool = True,
    mlp_bias: bool | None = None,
) -> None:
    """The layers of a transformer: two norms, attention, an MLP. `heads` are what tensor parallelism deals out, where it divides the tower at all."""
    first = len(shapes.found)
    inner = hidden if head_dim is None else heads * head_dim
    into_kv = inner if kv is None else kv
    for part, out, biased in (("q", inner, bias), ("k", into_kv, bias and k_bias), ("v", into_kv, bias)):
        shapes.linear(f"{name}.attn.{part}_proj", out, hidden, split="rows", parts=heads, bias=biased, copies=depth, role="attention")
    shapes.linear(f"{name}.attn.proj", hidden, inner, split="cols", parts=heads, bias=bias, copies=depth, role="attention")
    mlp(shapes, f"{name}.mlp", hidden, width, at=(), gated=gated, bias=bias if mlp_bias is None else mlp_bias, copies=depth, used=depth)
    for norm in ("norm1", "norm2"):
        shapes.norm(f"{name}.{norm}", hidden, bias=norm_bias, copies=depth)
    copied = {"none": ("attention", "mlp", "norm"), "attention": ("mlp",), "all": ()}[divided]
    shapes.found[first:] = [
        tensor.model_copy(update={"split": "replicated", "parts": None}) if tensor.role in copied else tensor for tensor in shapes.found[first:]
    ]


def _vision(config: Config) -> Config:
    section = config.section("vision_config")
    if section is None:
        raise config.missing("vision_config")
    return section


def _either(config: Config, *names: str, otherwise: int) -> int:
    stated = config.optional(*names)
    return otherwise if stated is None else stated


def qwen_vl(shapes: Shapes, config: Config, _hidden: int) -> bool:
    """Qwen2-VL: layer norms with bias and a plain MLP. Qwen2.5-VL and EXAONE 4.5: RMS norms and a gated MLP; EXAONE has fewer KV heads."""
    vision = _vision(config)
    depth, heads, patch = vision.sizes("depth", "num_heads", "patch_size")
    older = vision.optional("mlp_ratio") is not None
    hidden = vision.size("embed_dim" if older else "hidden_size")
    out = vision.size("hidden_size" if older else "out_hidden_size")
    width = hidden * vision.size("mlp_ratio") if older else vision.size("intermediate_size")
    kv_heads = _either(vision, "num_key_value_heads", otherwise=heads)
    temporal, merge = _either(vision, "temporal_patch_size", otherwise=2), _either(vision, "spatial_merge_size", otherwise=2)
    channels = _either(vision, "in_chans", "in_channels", otherwise=3)
    shapes.add("visual.patch_embed.proj", hidden, channels, temporal, patch, patch)
    kv = kv_heads * (hidden // heads)
    _encoder(shapes, "visual.blocks.*", depth, hidden, width, heads=heads, norm_bias=older, gated=not older, kv=kv)
    merged = hidden * merge**2
    shapes.norm("visual.merger.ln_q", hidden, bias=older)
    shapes.linear("visual.merger.mlp.0", merged, merged, split="rows", bias=True)
    shapes.linear("visual.merger.mlp.2", out, merged, split="cols", bias=True)
    return True


def qwen3_vl(shapes: Shapes, config: Config, _hidden: int) -> bool:
    """Qwen3-VL and Qwen3.5: learned positions; a merger for each layer of deepstack_visual_indexes beside the last one."""
    vision = _vision(config)
    depth, heads, patch, hidden, width, positions, out = vision.sizes(
        "depth", "num_heads", "patch_size", "hidden_size", "intermediate_size", "num_position_embeddings", "out_hidden_size"
    )
    temporal, merge = _either(vision, "temporal_patch_size", otherwise=2), _either(vision, "spatial_merge_size", otherwise=2)
    shapes.add("visual.patch_embed.proj", hidden, _either(vision, "in_channels", otherwise=3), temporal, patch, patch)
    shapes.add("visual.patch_embed.proj.bias", hidden)
    shapes.add("visual.pos_embed", positions, hidden)
    _encoder(shapes, "visual.blocks.*", depth, hidden, width, heads=heads)
    merged, deep = hidden * merge**2, len(vision.numbers("deepstack_visual_indexes") or ())
    for name, normed, copies in (("merger", hidden, 1), ("deepstack_merger_list.*", merged, deep)):
        if copies:
            shapes.norm(f"visual.{name}.norm", normed, bias=True, copies=copies)
            shapes.linear(f"visual.{name}.linear_fc1", merged, merged, split="rows", bias=True, copies=copies)
            shapes.linear(f"visual.{name}.linear_fc2", out, merged, split="cols", bias=True, copies=copies)
    return True


def _siglip(shapes: Shapes, vision: Config, *, flat_patches: bool = False) -> int:
    """SigLIP: positions for each patch, a norm behind the last layer. Returns its width."""
    depth, heads, hidden, width, patch = vision.sizes("num_hidden_layers", "num_attention_heads", "hidden_size", "intermediate_size", "patch_size")
    channels = _either(vision, "num_channels", otherwise=3)
    if flat_patches:
        shapes.linear("vision_tower.embeddings.patch_embedding", hidden, channels * patch**2, bias=True, role="other")
        positions = vision.size("num_patches")
    else:
        shapes.add("vision_tower.embeddings.patch_embedding", hidden, channels, patch, patch)
        shapes.add("vision_tower.embeddings.patch_embedding.bias", hidden)
        positions = (vision.size("image_size") // patch) ** 2
    shapes.add("vision_tower.embeddings.position_embedding", positions, hidden)
    _encoder(shapes, "vision_tower.encoder.layers.*", depth, hidden, width, heads=heads)
    shapes.norm("vision_tower.post_layernorm", hidden, bias=True)
    return hidden


def gemma3(shapes: Shapes, config: Config, hidden: int) -> bool:
    """SigLIP and one matrix."""
    width = _siglip(shapes, _vision(config))
    shapes.add("multi_modal_projector.mm_input_projection_weight", width, hidden)
    shapes.norm("multi_modal_projector.mm_soft_emb_norm", width)
    return True


def paligemma(shapes: Shapes, config: Config, hidden: int) -> bool:
    """SigLIP and one matrix with a bias."""
    width = _siglip(shapes, _vision(config))
    shapes.linear("multi_modal_projector.linear", hidden, width, bias=True)
    return True


def lfm2_vl(shapes: Shapes, config: Config, hidden: int) -> bool:
    """SigLIP 2, whose patches come flat, and two matrices over downsampled patches."""
    width = _siglip(shapes, _vision(config), flat_patches=True)
    factor, inner, bias = config.size("downsample_factor"), config.size("projector_hidden_size"), config.flag("projector_bias", absent=True)
    into = width * factor**2
    if config.flag("projector_use_layernorm", absent=True):
        shapes.norm("multi_modal_projector.layer_norm", into, bias=True)
    shapes.linear("multi_modal_projector.linear_1", inner, into, bias=bias)
    shapes.linear("multi_modal_projector.linear_2", hidden, inner, bias=bias)
    return True


def llava(shapes: Shapes, config: Config, hidden: int) -> bool:
    """CLIP and two matrices. The first LLaVA files name the tower instead of its sizes."""
    vision = config.section("vision_config")
    if vision is None:
        if config.text("mm_vision_tower") != "openai/clip-vit-large-patch14-336" or config.text("mm_projector_type") != "mlp2x_gelu":
            return False
        vision = Config({}, config.where)
    depth, heads, inner, width, patch, image = (
        _either(vision, name, otherwise=CLIP_LARGE[name])
        for name in ("num_hidden_layers", "num_attention_heads", "hidden_size", "intermediate_size", "patch_size", "image_size")
    )
    if (vision.text("model_type") or "clip_vision_model") != "clip_vision_model":
        return False
    shapes.add("vision_tower.embeddings.class_embedding", inner)
    shapes.add("vision_tower.embeddings.patch_embedding", inner, 3, patch, patch)
    shapes.add("vision_tower.embeddings.position_embedding", (image // patch) ** 2 + 1, inner)
    shapes.norm("vision_tower.pre_layrnorm", inner, bias=True)
    _encoder(shapes, "vision_tower.encoder.layers.*", depth, inner, width, heads=heads)
    shapes.norm("vision_tower.post_layernorm", inner, bias=True)
    bias = config.flag("multimodal_projector_bias", absent=True)
    shapes.linear("multi_modal_projector.linear_1", hidden, inner, bias=bias, split="rows")
    shapes.linear("multi_modal_projector.linear_2", hidden, hidden, bias=bias, split="cols")
    return True


CLIP_LARGE: Final = {
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "patch_size": 14,
    "image_size": 336,
}
"""openai/clip-vit-large-patch14-336, which LLaVA's config class fills in (transformers 5.24.0, configuration_llava.py)."""


def pixtral(shapes: Shapes, config: Config, hidden: int) -> bool:
    """Pixtral: RMS norms, a gated MLP and no bias; a matrix merges patches."""
    vision = _vision(config)
    depth, heads, inner, width, patch = vision.sizes("num_hidden_layers", "num_attention_heads", "hidden_size", "intermediate_size", "patch_size")
    shapes.add("vision_tower.patch_conv", inner, _either(vision, "num_channels", otherwise=3), patch, patch)
    shapes.norm("vision_tower.ln_pre", inner)
    _encoder(shapes, "vision_tower.transformer.layers.*", depth, inner, width, heads=heads, bias=False, norm_bias=False, gated=True)
    merge, bias = _either(config, "spatial_merge_size", otherwise=2), config.flag("multimodal_projector_bias", absent=False)
    shapes.norm("multi_modal_projector.norm", inner)
    shapes.linear("multi_modal_projector.patch_merger.merging_layer", inner, inner * merge**2)
    shapes.linear("multi_modal_projector.linear_1", hidden, inner, bias=bias, split="rows")
    shapes.linear("multi_modal_projector.linear_2", hidden, hidden, bias=bias, split="cols")
    return True


def pixtral_if_any(shapes: Shapes, config: Config, hidden: int) -> bool:
    """The same, where the config has a vision tower."""
    return config.section("vision_config") is None or pixtral(shapes, config, hidden)


def gemma4(shapes: Shapes, config: Config, hidden: int) -> bool:
    """Gemma 4: a vision tower with norms of Q and K, and a conformer for audio, each where the config has one (modeling_gemma4.py)."""
    vision, audio = config.section("vision_config"), config.section("audio_config")
    if vision is not None:
        _gemma4_vision(shapes, vision, hidden)
    if audio is not None:
        shapes.linear("embed_audio.embedding_projection", hidden, _gemma4_audio(shapes, audio))
    return vision is not None or audio is not None


def _gemma4_vision(shapes: Shapes, vision: Config, hidden: int) -> None:
    depth, heads, inner, width, patch, positions = vision.sizes(
        "num_hidden_layers", "num_attention_heads", "hidden_size", "intermediate_size", "patch_size", "position_embedding_size"
    )
    head_dim, kv_heads = vision.size("head_dim"), _either(vision, "num_key_value_heads", otherwise=heads)
    shapes.add("vision_tower.patch_embedder.position_embedding_table", 2, positions, inner)
    shapes.linear("vision_tower.patch_embedder.input_proj", inner, 3 * patch**2)
    name = "vision_tower.encoder.layers.*"
    _encoder(
        shapes,
        name,
        depth,
        inner,
        width,
        heads=heads,
        divided="none",
        bias=False,
        norm_bias=False,
        gated=True,
        head_dim=head_dim,
        kv=kv_heads * head_dim,
    )
    for norm, size in (("q_norm", head_dim), ("k_norm", head_dim), ("pre_feedforward_layernorm", inner), ("post_feedforward_layernorm", inner)):
        shapes.norm(f"{name}.{norm}", size, copies=depth)
    if vision.flag("standardize", absent=False):
        for buffer in ("std_bias", "std_scale"):
            shapes.add(f"vision_tower.{buffer}", inner, role="buffer")
    shapes.linear("embed_vision.embedding_projection", hidden, inner)


def _gemma4_audio(shapes: Shapes, audio: Config) -> int:
    """Two strided convolutions over the mel bands, then conformer layers. Returns the width of its output."""
    depth, inner, kernel, out, heads = audio.sizes("num_hidden_layers", "hidden_size", "conv_kernel_size", "output_proj_dims", "num_attention_heads")
    channels = audio.numbers("subsampling_conv_channels", 1) or (128, 32)
    before = 1
    for index, after in enumerate(channels):
        shapes.add(f"audio_tower.subsample_conv_projection.layer{index}.conv", after, before, 3, 3)
        shapes.norm(f"audio_tower.subsample_conv_projection.layer{index}.norm", after)
        before = after
    bands = 128 // 2 ** len(channels)
    shapes.linear("audio_tower.subsample_conv_projection.input_proj_linear", inner, channels[-1] * bands)
    name = "audio_tower.layers.*"
    for block in ("feed_forward1", "feed_forward2"):
        shapes.linear(f"{name}.{block}.ffw_layer_1", 4 * inner, inner, copies=depth)
        shapes.linear(f"{name}.{block}.ffw_layer_2", inner, 4 * inner, copies=depth)
        for norm in ("pre_layer_norm", "post_layer_norm"):
            shapes.norm(f"{name}.{block}.{norm}", inner, copies=depth)
    for part in ("q_proj", "k_proj", "v_proj", "post", "relative_k_proj"):
        shapes.linear(f"{name}.self_attn.{part}", inner, inner, copies=depth)
    shapes.add(f"{name}.self_attn.per_dim_scale", inner // heads, copies=depth)
    shapes.linear(f"{name}.lconv1d.linear_start", 2 * inner, inner, copies=depth)
    shapes.linear(f"{name}.lconv1d.linear_end", inner, inner, copies=depth)
    shapes.add(f"{name}.lconv1d.depthwise_conv1d", inner, 1, kernel, copies=depth)
    for norm in ("lconv1d.pre_layer_norm", "lconv1d.conv_norm", "norm_pre_attn", "norm_post_attn", "norm_out"):
        shapes.norm(f"{name}.{norm}", inner, copies=depth)
    shapes.linear("audio_tower.output_proj", out, inner, bias=True)
    return out


def llama4(shapes: Shapes, config: Config, hidden: int) -> bool:
    """Llama 4: a ViT with a class token, an adapter over shuffled pixels."""
    vision = _vision(config)
    depth, heads, inner, width, patch, image, projected, out = vision.sizes(
        "num_hidden_layers", "num_attention_heads", "hidden_size", "intermediate_size", "patch_size", "image_size", "projector_input_dim", "vision_output_dim"
    )
    shapes.add("vision_model.class_embedding", inner)
    shapes.add("vision_model.positional_embedding_vlm", (image // patch) ** 2 + 1, inner)
    shapes.linear("vision_model.patch_embedding.linear", inner, 3 * patch**2, split="rows")
    for norm in ("layernorm_pre", "layernorm_post"):
        shapes.norm(f"vision_model.{norm}", inner, bias=True)
    _encoder(shapes, "vision_model.model.layers.*", depth, inner, width, heads=heads)
    shapes.linear("vision_model.vision_adapter.mlp.fc1", projected, width, split="rows")
    shapes.linear("vision_model.vision_adapter.mlp.fc2", projected, projected, split="cols")
    shapes.linear("multi_modal_projector.linear_1", hidden, out, split="rows")
    return True


def mllama(shapes: Shapes, config: Config, hidden: int) -> bool:
    """Llama-3.2-Vision: local and gated global layers, positions for each tile of each aspect ratio."""
    vision = _vision(config)
    local, heads, inner, width, patch, image, tiles, gated, out = vision.sizes(
        "num_hidden_layers",
        "attention_heads",
        "hidden_size",
        "intermediate_size",
        "patch_size",
        "image_size",
        "max_num_tiles",
        "num_global_layers",
        "vision_output_dim",
    )
    ratios = vision.get("supported_aspect_ratios")
    rows = (len(ratios) if isinstance(ratios, list) else 8) + 1
    patches = (image // patch) ** 2 + 1
    shapes.add("vision_model.class_embedding", inner)
    shapes.add("vision_model.patch_embedding", inner, 3, patch, patch)
    shapes.add("vision_model.gated_positional_embedding.embedding", patches, inner)
    shapes.add("vision_model.gated_positional_embedding.tile_embedding", rows, tiles * patches * inner)
    for name in ("pre_tile_positional_embedding", "post_tile_positional_embedding"):
        shapes.add(f"vision_model.{name}.embedding", rows, tiles * inner)
    for name in ("gated_positional_embedding", "pre_tile_positional_embedding", "post_tile_positional_embedding"):
        shapes.add(f"vision_model.{name}.gate", 1)
    for norm in ("layernorm_pre", "layernorm_post"):
        shapes.norm(f"vision_model.{norm}", inner, bias=True)
    for name, depth in (("transformer", local), ("global_transformer", gated)):
        _encoder(shapes, f"vision_model.{name}.layers.*", depth, inner, width, heads=heads, bias=False, mlp_bias=True)
    for gate in ("gate_attn", "gate_ffn"):
        shapes.add(f"vision_model.global_transformer.layers.*.{gate}", 1, copies=gated)
    shapes.linear("multi_modal_projector", hidden, out, bias=True)
    return True


def muse_glimmer(shapes: Shapes, config: Config, hidden: int) -> bool:
    """Muse Glimmer: patches over two frames, an adapter of two matrices over merged patches, one projection."""
    vision = _vision(config)
    depth, heads, inner, width, patch, merge, frames, rows, columns = vision.sizes(
        "num_hidden_layers",
        "num_attention_heads",
        "hidden_size",
        "intermediate_size",
        "patch_size",
        "merge_size",
        "patch_temporal",
        "pos_emb_height",
        "pos_emb_width",
    )
    adapted = config.size("projector_hidden_size")
    shapes.linear("vision_tower.patch_embedder.patch_embedding", inner, 3 * frames * patch**2)
    shapes.add("vision_tower.patch_embedder.position_embedding_table", rows * columns, inner)
    for norm in ("ln_pre", "ln_post"):
        shapes.norm(f"vision_tower.{norm}", inner, bias=True)
    _encoder(shapes, "vision_tower.layers.*", depth, inner, width, heads=heads, divided="attention")
    shapes.linear("vision_adapter.fc1", adapted, inner * merge**2)
    shapes.linear("vision_adapter.fc2", adapted, adapted)
    shapes.linear("vision_projection", hidden, adapted)
    return True


def moonvit(shapes: Shapes, config: Config, hidden: int) -> bool:
    """Kimi K2.5's tower; that of K3 has its own width of attention, RMS norms and no bias (vLLM 0.33.0, kimi_k25_vit.py)."""
    vision = _vision(config)
    depth, heads, inner, width, patch, rows, columns = vision.sizes(
        "vt_num_hidden_layers", "vt_num_attention_heads", "vt_hidden_size", "vt_intermediate_size", "patch_size", "init_pos_emb_height", "init_pos_emb_width"
    )
    merge = vision.numbers("merge_kernel_size", 1) or (2, 2)
    later = vision.optional("qkv_hidden_size")
    bias = vision.flag("attn_bias", absent=True)
    normed = vision.text("norm_type") != "rmsnorm"
    shapes.add("vision_tower.patch_embed.proj", inner, 3, patch, patch)
    if vision.flag("patch_embed_proj_bias", absent=True):
        shapes.add("vision_tower.patch_embed.proj.bias", inner)
    shapes.add("vision_tower.patch_embed.pos_emb", rows, columns, inner)
    head_dim = None if later is None else later // heads
    _encoder(
        shapes,
        "vision_tower.layers.*",
        depth,
        inner,
        width,
        heads=heads,
        bias=bias,
        norm_bias=normed,
        head_dim=head_dim,
        mlp_bias=vision.flag("linear_bias", absent=True),
    )
    shapes.norm("vision_tower.final_layernorm", inner, bias=normed)
    merged = inner * merge[0] * merge[1]
    projects_plainly = vision.text("mm_projector_type") == "patchmerger"
    shapes.norm("mm_projector.pre_norm", inner, bias=normed)
    shapes.linear("mm_projector.in_proj", merged, merged, bias=projects_plainly)
    shapes.linear("mm_projector.out_proj", hidden, merged, bias=projects_plainly)
    if not projects_plainly:
        shapes.norm("mm_projector.post_norm", hidden)
    return True


def glm5_next(shapes: Shapes, config: Config, _hidden: int) -> bool:
    """GLM-5.3-Flash: norms of Q and K, a convolution that merges patches, a gated projection behind it."""
    vision = _vision(config)
    depth, heads, inner, width, patch, out, merge, temporal, projected = vision.sizes(
        "depth",
        "num_heads",
        "hidden_size",
        "intermediate_size",
        "patch_size",
        "out_hidden_size",
        "spatial_merge_size",
        "temporal_patch_size",
        "projection_intermediate_size",
    )
    shapes.add("visual.patch_embed.proj", inner, _either(vision, "in_channels", otherwise=3), temporal, patch, patch)
    shapes.add("visual.patch_embed.proj.bias", inner)
    _encoder(shapes, "visual.blocks.*", depth, inner, width, heads=heads, norm_bias=False, gated=True)
    for norm in ("q_norm", "k_norm"):
        shapes.norm(f"visual.blocks.*.attn.{norm}", inner // heads, copies=depth)
    shapes.norm("visual.post_layernorm", inner)
    shapes.add("visual.downsample", out, inner, merge, merge)
    shapes.add("visual.downsample.bias", out)
    shapes.linear("visual.merger.proj", out, out)
    shapes.norm("visual.merger.post_projection_norm", out, bias=True)
    mlp(shapes, "visual.merger", out, projected, at=())
    return True


def _audio_encoder(
    shapes: Shapes, audio: Config, name: str, names: tuple[str, str, str, str], *, k_bias: bool, divided: Literal["all", "attention", "none"] = "all"
) -> int:
    """The layers of Whisper's encoder under other key names: layers, width, heads, width of the MLP. Returns the width."""
    depth, inner, heads, width = audio.sizes(*names)
    _encoder(shapes, f"{name}.layers.*", depth, inner, width, heads=heads, k_bias=k_bias, divided=divided)
    return inner


def voxtral(shapes: Shapes, config: Config, hidden: int) -> bool:
    """Voxtral: Whisper's encoder and two matrices over four frames at a time."""
    audio = config.section("audio_config")
    if audio is None:
        return False
    inner = _audio_encoder(shapes, audio, "audio_tower", ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size"), k_bias=False)
    for name, into in (("conv1", audio.size("num_mel_bins")), ("conv2", inner)):
        shapes.add(f"audio_tower.{name}", inner, into, 3)
        shapes.add(f"audio_tower.{name}.bias", inner)
    shapes.add("audio_tower.embed_positions", audio.size("max_source_positions"), inner)
    shapes.norm("audio_tower.layer_norm", inner, bias=True)
    shapes.linear("multi_modal_projector.linear_1", hidden, audio.size("intermediate_size"), split="rows")
    shapes.linear("multi_modal_projector.linear_2", hidden, hidden, split="cols")
    return True


def qwen3_asr(shapes: Shapes, config: Config, _hidden: int) -> bool:
    """Qwen3-ASR and the audio of Qwen3-Omni: three strided convolutions over the mel bands, Whisper's layers, two matrices."""
    audio = config.section("audio_config")
    if audio is None:
        return False
    inner = _audio_encoder(shapes, audio, "audio_tower", ("encoder_layers", "d_model", "encoder_attention_heads", "encoder_ffn_dim"), k_bias=True)
    channels, bands, out = audio.sizes("downsample_hidden_size", "num_mel_bins", "output_dim")
    for index in range(3):
        shapes.add(f"audio_tower.conv2d{index + 1}", channels, channels if index else 1, 3, 3)
        shapes.add(f"audio_tower.conv2d{index + 1}.bias", channels)
    shapes.linear("audio_tower.conv_out", inner, channels * -(-bands // 8))
    shapes.norm("audio_tower.ln_post", inner, bias=True)
    shapes.linear("audio_tower.proj1", inner, inner, bias=True)
    shapes.linear("audio_tower.proj2", out, inner, bias=True)
    return True


def minicpmv4_6(shapes: Shapes, config: Config, hidden: int) -> bool:
    """MiniCPM-V 4.6: SigLIP, one attention block that merges windows inside it, and merger MLPs, which stand with the language model."""
    vision = _vision(config)
    inner, width = _siglip(shapes, vision), vision.size("intermediate_size")
    window = vision.numbers("window_kernel_size", 1) or (2, 2)
    merged, heads = inner * window[0] * window[1], vision.size("num_attention_heads")
    name = "vision_tower.vit_merger"
    for part in ("q", "k", "v"):
        shapes.linear(f"{name}.self_attn.{part}_proj", inner, inner, split="rows", parts=heads, bias=True)
    shapes.linear(f"{name}.self_attn.out_proj", inner, inner, split="cols", parts=heads, bias=True)
    shapes.norm(f"{name}.layer_norm1", inner, bias=True)
    shapes.norm(f"{name}.pre_norm", merged, bias=True)
    shapes.linear(f"{name}.linear_1", width * window[0] * window[1], merged, split="rows", bias=True)
    shapes.linear(f"{name}.linear_2", inner, width * window[0] * window[1], split="cols", bias=True)
    times, merger = config.size("merger_times"), Shapes("text")
    for index in range(times):
        merger.norm(f"merger.mlp.{index}.pre_norm", merged, bias=True)
        merger.linear(f"merger.mlp.{index}.linear_1", merged, merged, split="rows", bias=True)
        merger.linear(f"merger.mlp.{index}.linear_2", hidden if index == times - 1 else inner, merged, split="cols", bias=True)
    shapes.found += merger.found
    return True


def qwen2_5_omni(shapes: Shapes, config: Config, hidden: int) -> bool:
    """Qwen2.5-Omni: the vision tower of Qwen2.5-VL, and Whisper's encoder with fixed positions (modeling_qwen2_5_omni.py)."""
    audio = config.section("audio_config")
    if audio is None:
        return False
    inner = _audio_encoder(
        shapes, audio, "audio_tower", ("encoder_layers", "d_model", "encoder_attention_heads", "encoder_ffn_dim"), k_bias=False, divided="none"
    )
    for name, into in (("conv1", audio.size("num_mel_bins")), ("conv2", inner)):
        shapes.add(f"audio_tower.{name}", inner, into, 3)
        shapes.add(f"audio_tower.{name}.bias", inner)
    shapes.norm("audio_tower.ln_post", inner, bias=True)
    shapes.linear("audio_tower.proj", audio.size("output_dim"), inner, bias=True)
    shapes.add("audio_tower.audio_bos_eos_token", 2, audio.size("output_dim"))
    return qwen_vl(shapes, config, hidden)


def dots_ocr(shapes: Shapes, config: Config, hidden: int) -> bool:
    """dots.ocr: RMS norms, a gated MLP, one merger (vLLM 0.33.0, dots_ocr.py)."""
    vision = _vision(config)
    depth, heads, inner, width, patch, merge = vision.sizes(
        "num_hidden_layers", "num_attention_heads", "embed_dim", "intermediate_size", "patch_size", "spatial_merge_size"
    )
    shapes.add("vision_tower.patch_embed.proj", inner, _either(vision, "num_channels", otherwise=3), patch, patch)
    shapes.add("vision_tower.patch_embed.proj.bias", inner)
    shapes.norm("vision_tower.patch_embed.norm", inner)
    _encoder(shapes, "vision_tower.blocks.*", depth, inner, width, heads=heads, bias=vision.flag("use_bias", absent=False), norm_bias=False, gated=True)
    if vision.flag("post_norm", absent=True):
        shapes.norm("vision_tower.post_trunk_norm", inner)
    merged = inner * merge**2
    shapes.norm("vision_tower.merger.ln_q", inner, bias=True)
    shapes.linear("vision_tower.merger.mlp.0", merged, merged, split="rows", bias=True)
    shapes.linear("vision_tower.merger.mlp.2", hidden, merged, split="cols", bias=True)
    return True


TOWERS: Final[dict[str, Tower]] = {
    "dots_ocr": dots_ocr,
    "exaone4_5": qwen_vl,
    "gemma3": gemma3,
    "gemma4": gemma4,
    "glm5_next": glm5_next,
    "kimi_k25": moonvit,
    "kimi_k3": moonvit,
    "lfm2_vl": lfm2_vl,
    "llama4": llama4,
    "llava": llava,
    "minicpmv4_6": minicpmv4_6,
    "ministral3": pixtral_if_any,
    "mistral3": pixtral,
    "mllama": mllama,
    "muse_glimmer": muse_glimmer,
    "paligemma": paligemma,
    "qwen2_5_omni_thinker": qwen2_5_omni,
    "qwen2_5_vl": qwen_vl,
    "qwen2_vl": qwen_vl,
    "qwen3_5": qwen3_vl,
    "qwen3_5_moe": qwen3_vl,
    "qwen3_asr_thinker": qwen3_asr,
    "qwen3_vl": qwen3_vl,
    "qwen3_vl_moe": qwen3_vl,
    "voxtral": voxtral,
}
"""By the model_type of the object that holds the tower beside the language model."""
