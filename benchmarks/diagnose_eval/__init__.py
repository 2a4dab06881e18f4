"""Scores of the detectors on labelled real curves and on synthetic runs with an injected fault."""
