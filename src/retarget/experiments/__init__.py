"""Figures and demonstrations: experiments as data (TOML), one runner, one module a family."""
