"""The paper's figures, and what several of them share. Needs the extra `figures`."""

from retarget.errors import missing_extra

try:
    import matplotlib  # noqa: F401
except ImportError as error:
    raise missing_extra("experiments need Matplotlib", error, "figures") from error
