"""The scheduler service: owns requests, decides what each worker computes next."""
