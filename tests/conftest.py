import torch
from hypothesis import HealthCheck, settings

# The matrices of the tests are small: threads would only wait for each other.
torch.set_num_threads(1)

settings.register_profile(
    "retarget",
    deadline=None,  # machines are noisy: speed is the benchmarks' business
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("retarget")
