"""The commands of `spark-submit.sh`, one a module: thin, each reads, transforms and writes."""
