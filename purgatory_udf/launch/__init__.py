"""What happens before Spark starts: command line, virtual environment, Java, jars, submission, session.

Only the standard library at import time: the first of these modules runs on a bare Python.
"""
