"""What all tests share: hypothesis without a clock, for machines that are busy with other things too."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "augury", deadline=None, print_blob=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("augury")
