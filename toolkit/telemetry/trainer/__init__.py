"""The example: a small, real LoRA trainer, in a checkout only.

Read loop.py first; options.py has what its YAML may say.
"""
