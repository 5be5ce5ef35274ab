"""What a checkpoint says (description, weights) and the decoder that runs it (llama)."""
