"""What happens before Spark starts: the environment, Java, Delta's jars, the shipped package, the command line.

Only the standard library at import time: the first of these modules runs on a bare Python.
"""
