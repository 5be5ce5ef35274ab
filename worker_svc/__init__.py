"""The worker: a pure engine that runs the model over paged KV, and the gRPC server around it."""
