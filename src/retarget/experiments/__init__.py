"""The paper's figures and demonstrations: experiments in TOML files, and what runs and draws them.

Computing and drawing needs the extra: `pip install "retarget[figures]"`.
"""
