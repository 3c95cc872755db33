# Completions of purgatory-replay and spark-submit.sh. Written by tests/generate/completions.py.

_purgatory_replay() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} job= words= at
  for ((at = 1; at < COMP_CWORD; at++)); do
    case ${COMP_WORDS[at]} in
    audit|demo|diagnose|explain|fidelity|fit|ingest|inspect|maintain|metrics|package|replay|report|simulate|top|tune|what-if) job=${COMP_WORDS[at]}; break ;;
    esac
  done
  COMPREPLY=()
  case $job:$before in
    :--show-completion) words='bash zsh fish' ;;
    ingest:--from) words='jsonl parquet request-log kafka' ;;
    ingest:--messages) words='events request-log' ;;
    simulate:--scenario) words='cold-consumers create-topics hot-partition idle-consumers large-batches leader-failover open-transactions purgatory-leak rebalance-storm rolling-restart share-workers slow-follower slow-remote-reads steady throttled-replica' ;;
    what-if:--closed-loop) words='cold-consumers create-topics hot-partition idle-consumers large-batches leader-failover open-transactions purgatory-leak rebalance-storm rolling-restart share-workers slow-follower slow-remote-reads steady throttled-replica' ;;
  esac
  if [[ -z $words && ( -z $job || $word == -* ) ]]; then
    case $job in
    "") words='audit demo diagnose explain fidelity fit ingest inspect maintain metrics package replay report simulate top tune what-if --help --version --show-completion --archives --class --conf --deploy-mode --driver-class-path --driver-cores --driver-java-options --driver-library-path --driver-memory --exclude-packages --executor-cores --executor-memory --files --jars --keytab --kill --load-spark-defaults --master --name --num-executors --packages --principal --properties-file --proxy-user --py-files --queue --remote --repositories --status --supervise --total-executor-cores --verbose' ;;
    audit) words='--out --json --verbose --help' ;;
    demo) words='--out --verbose --help' ;;
    diagnose) words='--out --from --to --top --json --baseline --verbose --help' ;;
    explain) words='--out --operation --request-id --group --client --member --record --top --json --verbose --help' ;;
    fidelity) words='--out --jmx-before --jmx-after --server-log --zone --html --json --verbose --help' ;;
    fit) words='--out --scenario-file --events --seeds --html --verbose --help' ;;
    ingest) words='--out --from --max-disorder-ms --max-rejected --overwrite --events-per-file --run-id --topics --batches --isr --kafka-version --zone --anonymise --anonymise-key --bootstrap --topic --messages --client --client-file --follow --hold-ms --config --set --verbose --help' ;;
    inspect) words='--checkpoint --limit --verbose --help' ;;
    maintain) words='--out --keep-hours --verbose --help' ;;
    metrics) words='--out --window-ms --by --bytes-per-watch --top --prometheus --json --verbose --help' ;;
    package) words='--out --verbose --help' ;;
    replay) words='--out --events --trace --config --set --max-disorder-ms --drain --no-drain --batch-events --run-id --overwrite --follow --explain --json --verbose --help' ;;
    report) words='--out --html --window-ms --top --verbose --help' ;;
    simulate) words='--out --scenario --jsonl --seed --duration --scale --check --overwrite --open-loop --events --partitions --rate --skew --keys --median-ms --p75-ms --timeout-ms --max-wait-ms --group-share --members --heartbeat-ms --commit-ms --session-timeout-ms --incident-s --crash-share --delete-share --create-share --transaction-share --transaction-ms --verbose --help' ;;
    top) words='--out --once --every --rows --json --serve --verbose --help' ;;
    tune) words='--like --goal --within --over --seeds --html --verbose --help' ;;
    what-if) words='--variant --out --events --closed-loop --like --seeds --json --seed --duration --scale --config --set --html --verbose --help' ;;
    esac
  fi
  # Without words, bash completes file names.
  [[ -z $words ]] || COMPREPLY=($(compgen -W "$words" -- "$word"))
}
complete -o default -F _purgatory_replay purgatory-replay spark-submit.sh
