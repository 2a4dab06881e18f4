"""How often the detectors are right: on labelled curves of other people's runs, and on made runs with a fault."""
