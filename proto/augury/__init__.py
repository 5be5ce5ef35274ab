"""The contract: what two services must agree on."""
