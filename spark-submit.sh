#!/usr/bin/env bash
# Runs a job of Purgatory Replay: ./spark-submit.sh [Spark's options] [JOB [options]]. --help lists the jobs.
#
# This script only finds a Python. The package purgatory_udf/launch then sets up .venv, finds Java and Delta's jars,
# checks the job's options, and starts the job, in Spark or without.
set -euo pipefail

root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd -P)
launch='import runpy, sys; sys.path.insert(0, sys.argv[1]); del sys.argv[1]; sys.argv[0] = "spark-submit.sh"
try: runpy.run_module("purgatory_udf.launch", run_name="__main__")
except KeyboardInterrupt: sys.exit(130)'

for python in "$root/.venv/bin/python" "${PURGATORY_PYTHON:-}" python3 python3.{14,13,12,11} python; do
  if [[ -n $python ]] && "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    # -P: a file in the current folder must not shadow a module.
    exec "$python" -P -c "$launch" "$root" "$@"
  fi
done
echo "spark-submit.sh: Python 3.11 or newer is required; found: $(python3 --version 2>&1 || true)." \
  "Install it, or set its path: PURGATORY_PYTHON=/path/to/python3 ./spark-submit.sh" >&2
exit 2
