"""Figures and demonstrations: experiments as data (TOML), one runner, one module a family.

Needs the extra: `pip install "retarget[figures]"`.
"""

from retarget.errors import missing_extra

try:
    import matplotlib  # noqa: F401
except ImportError as error:
    raise missing_extra("experiments need Matplotlib", error, "figures") from error
