from hypothesis import HealthCheck, settings

settings.register_profile(
    "retarget",
    deadline=None,  # machines are noisy: speed is the benchmarks' business
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("retarget")
