"""From what is asked, by the names of options, to the question: where models, GPUs and checkpoints are found. It parses no words and prints nothing."""
