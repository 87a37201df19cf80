"""Figures and demonstrations: experiments as data (TOML), one runner, one module a figure.

Computing and drawing needs the extra: `pip install "retarget[figures]"`.
"""
