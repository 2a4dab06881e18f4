"""Answers about runs, each with how sure it is: did a resume continue, why do two runs differ, is one better."""
