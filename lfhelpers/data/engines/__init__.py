"""One module an engine: `make(request) -> Loader`. All serve the plan's batches; they differ in who does the work."""
