"""The base checkpoint: sight, words and actions learnt once, in stages, by a model that recipes then fine-tune."""
