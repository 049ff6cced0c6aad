"""The built-in workload `vla`: a vision-language-action model of the published GR00T N1.6 shape, and its world."""
