"""The weights on one GPU, as every engine divides them at least."""

from kvcalc.engines.base import Loaded, Options, model_packing, pipeline_stages
from kvcalc.errors import KvcalcError
from kvcalc.tensors import WeighedModel
from kvcalc.weights import Share, lora_bytes, share_bytes


def loaded_shares(spec: WeighedModel, options: Options, step: tuple[int, int] = (1, 1)) -> Loaded:
    """The share of the GPU that holds most, tensor by tensor, and adapters beside every matrix that may have one. Raises KvcalcError where the tensors of
    the model, or of its draft model, are not all known.
    """
    weights = max(_stage_weights(spec, options, step))
    draft = 0
    if options.draft is not None:
        draft = max(_stage_weights(options.draft, options._replace(draft=None, draft_layers=False, pp=1), step))
    elif options.draft_layers:
        draft = weights - max(_stage_weights(spec, options._replace(draft_layers=False), step))
    lora = lora_bytes(spec, options.tp, options.max_loras, options.max_lora_rank) if options.max_loras else 0
    return Loaded(weights - (draft if options.draft is None else 0), draft, lora)


def loaded_apart(spec: WeighedModel, options: Options, roles: frozenset[str], tp: int) -> Loaded:
    """The same where requests are dealt out to groups of `tp` GPUs, each of which holds the tensors of these roles whole (attention data parallelism)."""
    apart = tuple(tensor for tensor in spec.tensors if tensor.role in roles and tensor.part != "tower")
    rest = tuple(tensor for tensor in spec.tensors if tensor not in apart)
    if not apart or not rest:
        return loaded_shares(spec, options)
    shares = [loaded_shares(spec.model_copy(update={"tensors": tensors}), options._replace(tp=part)) for tensors, part in ((apart, tp), (rest, options.tp))]
    return Loaded(*(sum(sizes) for sizes in zip(*shares, strict=True)))


def _stage_weights(spec: WeighedModel, options: Options, step: tuple[int, int]) -> list[int]:
    untold = spec.untold or (None if spec.tensors else "the weights of this model are not known tensor by tensor")
    if untold is not None and not (spec.tensors and not options.towers):
        raise KvcalcError(untold, hint="state the size of the weights with --weights (the checkpoint) or --weights-per-gpu, or the KV budget with --kv-mem")
    model, _ = model_packing(spec.facts)
    sizes, start = [], 0
    for number, stage in enumerate(pipeline_stages(spec.layers, options.pp)):
        share = Share(
            tp=options.tp,
            ep=options.tp * options.dp if options.expert_parallel else 1,
            stage=range(start, start + len(stage)),
            first=number == 0,
            last=number == options.pp - 1,
            draft=options.draft_layers,
            towers=options.towers,
            mxfp4_step=step,
        )
        sizes.append(share_bytes(spec, model, share))
        start += len(stage)
    return sizes
