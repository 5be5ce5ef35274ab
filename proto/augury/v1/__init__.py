"""Generated protobuf and gRPC code; the .proto files beside it are the source."""
