#compdef purgatory-replay spark-submit.sh
# Completions of purgatory-replay and spark-submit.sh. Written by tests/generate/completions.py.

_purgatory_replay() {
  local context state line
  local -a jobs
  jobs=(
    'audit:Check the invariants of a replay'\''s tables; exit status 1 if one is violated'
    'demo:Replay the bundled sample trace, check its tables, and print a summary (the default job)'
    'diagnose:Name the broker, client, member or setting behind unusual waits; write the tables blame and findings'
    'explain:Explain an operation, group, member or record - what it waited for, what ended the wait, and why not earlier'
    'fidelity:Compare recorded and replayed operations - outcomes, waits, and the causes of differences'
    'fit:Fit a model to a recorded cluster, and check it by a simulation'
    'ingest:Import recorded traces into the table events; invalid lines go to rejected_events with the reason'
    'inspect:List the state in a checkpoint by key - number of open operations, oldest one, next deadline, bytes'
    'maintain:Compact small files of tables, and delete replaced files and the internal files of finished runs'
    'metrics:Compute Kafka'\''s meters, waits and causes, purgatory sizes and rebalances; write tables and a summary'
    'package:Build an archive of the Python environment for a cluster'\''s workers (spark-submit --archives)'
    'replay:Replay the events of a trace; write completions, expirations and watches as Delta tables'
    'report:Write a self-contained HTML report - outcomes over time, purgatory sizes, slow operations and causes'
    'simulate:Generate a trace - a simulated cluster with clients that react, or a trace of any size'
    'top:Show the status of a followed replay - purgatories, longest waits and their reasons, rebalancing groups'
    'tune:Search for settings that reach a goal within a limit, on a model of a recorded cluster'
    'what-if:Compare settings - on a recorded trace, on a simulated cluster, or by a model of a recorded cluster'
  )
  _arguments -C \
        '*--help[List the jobs.]' \
        '*--version[Show the version.]' \
        '*--show-completion[Print completions for a shell.]:value:(bash zsh fish)' \
        '*--archives[Option of Spark.]:value:_files' \
        '*--class[Option of Spark.]:value:_files' \
        '*--conf[Option of Spark.]:value:_files' \
        '*--deploy-mode[Option of Spark.]:value:_files' \
        '*--driver-class-path[Option of Spark.]:value:_files' \
        '*--driver-cores[Option of Spark.]:value:_files' \
        '*--driver-java-options[Option of Spark.]:value:_files' \
        '*--driver-library-path[Option of Spark.]:value:_files' \
        '*--driver-memory[Option of Spark.]:value:_files' \
        '*--exclude-packages[Option of Spark.]:value:_files' \
        '*--executor-cores[Option of Spark.]:value:_files' \
        '*--executor-memory[Option of Spark.]:value:_files' \
        '*--files[Option of Spark.]:value:_files' \
        '*--jars[Option of Spark.]:value:_files' \
        '*--keytab[Option of Spark.]:value:_files' \
        '*--kill[Option of Spark.]:value:_files' \
        '*--load-spark-defaults[Option of Spark.]' \
        '*--master[Option of Spark.]:value:_files' \
        '*--name[Option of Spark.]:value:_files' \
        '*--num-executors[Option of Spark.]:value:_files' \
        '*--packages[Option of Spark.]:value:_files' \
        '*--principal[Option of Spark.]:value:_files' \
        '*--properties-file[Option of Spark.]:value:_files' \
        '*--proxy-user[Option of Spark.]:value:_files' \
        '*--py-files[Option of Spark.]:value:_files' \
        '*--queue[Option of Spark.]:value:_files' \
        '*--remote[Option of Spark.]:value:_files' \
        '*--repositories[Option of Spark.]:value:_files' \
        '*--status[Option of Spark.]:value:_files' \
        '*--supervise[Option of Spark.]' \
        '*--total-executor-cores[Option of Spark.]:value:_files' \
        '*--verbose[Option of Spark.]' \
    '1:job:->job' '*::options:->options'
  case $state in
  job) _describe job jobs ;;
  options)
    case $words[1] in
    audit)
      _arguments \
        '*--out[Folder of a replay'\''s tables.]:value:_files' \
        '*--json[File for the answer as JSON; - prints only the JSON, to standard output.]:value:_files' \
        '*--verbose[Show Spark'\''s own log and whole stack traces.]' \
        '*--help[Show this message and exit.]' \
        '*:file:_files'
      ;;
    demo)
      _arguments \
        '*--out[Folder of the tables and the chart; replaces an earlier demo.]:value:_files' \
        '*--verbose[Show Spark'\''s own log and whole stack traces.]' \
        '*--help[Show this message and exit.]' \
        '*:file:_files'
      ;;
    diagnose)
      _arguments \
        '*--out[Folder of a replay'\''s tables; the replay may still be running.]:value:_files' \
        '*--from[Start of the period, in ISO 8601 - report only incidents that end at or after it.]:value:_files' \
        '*--to[End of the period, in ISO 8601 - report only incidents that start at or before it.]:value:_files' \
        '*--top[Maximum number of findings to print.]:value:_files' \
        '*--json[File for the findings as JSON; - for standard output.]:value:_files' \
        '*--baseline[Folder of another replay to compare with - also report findings and waits that have become worse.]:value:_files' \
        '*--verbose[Show Spark'\''s own log and whole stack traces.]' \
        '*--help[Show this message and exit.]' \
        '*:file:_files'
      ;;
    explain)
      _arguments \
        '*--out[Folder of a replay'\''s tables; the replay may still be running.]:value:_files' \
        '*--operation[ID of the operation to explain - operation_id in the tables of outcomes.]:value:_files' \
        '*--request-id[ID of the request to explain, or a unique suffix of the ID.]:value:_files' \
        '*--group[Consumer group to explain.]:value:_files' \
        '*--client[Client ID of the expired operations to explain.]:value:_files' \
        '*--member[Member of a consumer group (KIP-848) to explain - its member ID or client ID.]:value:_files' \
        '*--record[Record of a share group to explain, as GROUP/TOPIC-PARTITION -OFFSET.]:value:_files' \
        '*--top[Maximum number of operations, or of group changes, to print.]:value:_files' \
        '*--json[File for the answer as JSON; - prints only the JSON, to standard output.]:value:_files' \
        '*--verbose[Show Spark'\''s own log and whole stack traces.]' \
        '*--help[Show this message and exit.]' \
        '*:file:_files'
      ;;
    fidelity)
      _arguments \
        '*--out[Folder of an imported request log and its replay.]:value:_files' \
        '*--jmx-before[JSON file of the brokers'\'' expiration counters (JMX), read at the start of the log.]:value:_files' \
        '*--jmx-after[JSON file of the brokers'\'' expiration counters (JMX), read at the end of the log.]:value:_files' \
        '*--server-log[server.log of a broker, or a folder of server logs, to compare consumer groups (repeatable).]:value:_files' \
        '*--zone[Time zone of times without an offset in the server logs - UTC or an offset, such as +01 -00.]:value:_files' \
        '*--html[File of the HTML page. (default - fidelity.html in the folder)]:value:_files' \
        '*--json[File for the answer as JSON; - prints only the JSON, to standard output.]:value:_files' \
        '*--verbose[Show Spark'\''s own log and whole stack traces.]' \
        '*--help[Show this message and exit.]' \
        '*:file:_files'
      ;;
    fit)
      _arguments \
        '*--out[Folder of an imported request log, or of a replay.]:value:_files' \
        '*--scenario-file[YAML file for the fitted scenario.]:value:_files' \
        '*--events[Delta table of events. (default - events in the folder)]:value:_files' \
        '*--seeds[Number of simulations, each with its own random seed, that are compared with the recording.]:value:_files' \
        '*--html[File of the HTML page. (default - fit.html in the folder)]:value:_files' \
        '*--verbose[Show Spark'\''s own log and whole stack traces.]' \
        '*--help[Show this message and exit.]' \
        '*:file:_files'
      ;;
    ingest)
      _arguments \
        '*--out[Folder for the tables - events, rejected_events, and for request logs recorded.]:value:_files' \
        '*--from[Input format; request-log is the log that Kafka'\''s request logger writes. Files may be compressed.]:value:(jsonl parquet request-log kafka)' \
        '*--max-disorder-ms[Maximum out-of-orderness of events, in milliseconds; events beyond it are rejected. (default - 0)]:value:_files' \
        '*--max-rejected[Maximum percentage of rejected lines; above it, the exit status is 1. (default - 0)]:value:_files' \
        '*--overwrite[Replace existing tables in the folder.]' \
        '*--events-per-file[Approximate number of events per file of the table events.]:value:_files' \
        '*--run-id[ID of the run. (default - derived from the input)]:value:_files' \
        '*--topics[File of topic IDs and names - JSON, output of kafka-topics --describe, or lines id name.]:value:_files' \
        '*--batches[File of record batches - output of kafka-dump-log, or CSV.]:value:_files' \
        '*--isr[File of leaders and in-sync sets - output of kafka-dump-log --cluster-metadata-decoder.]:value:_files' \
        '*--kafka-version[Kafka version of the brokers, if the log does not show it. Replays then follow the rules of this version - for example, up to 3.9 offset commits wait like produces.]:value:_files' \
        '*--zone[Time zone of log times without an offset - UTC or an offset, such as +01 -00. (default - UTC)]:value:_files' \
        '*--anonymise[Replace the names of topics, groups, clients, members and assignors with pseudonyms.]' \
        '*--anonymise-key[Secret key for the pseudonyms, as ${env -NAME}; without a key, others can verify guessed names.]:value:_files' \
        '*--bootstrap[Bootstrap servers of the cluster with the topic.]:value:_files' \
        '*--topic[Topic to read.]:value:_files' \
        '*--messages[Content of each message - an event, or a line of a request log. (default - events)]:value:(events request-log)' \
        '*--client[Kafka client setting, for example security.protocol=SSL (repeatable).]:value:_files' \
        '*--client-file[Properties file of Kafka client settings, including secrets; ${env -NAME} is replaced by the environment variable, here and in --client.]:value:_files' \
        '*--follow[Follow the topic - import new messages until interrupted.]' \
        '*--hold-ms[Time to hold back lines of a followed request log, in milliseconds, because later lines may describe earlier events; at least the longest wait of a request. (default - 60000)]:value:_files' \
        '*--config[YAML file of settings; conf/local.yaml documents them.]:value:_files' \
        '*--set[One setting; overrides --config (repeatable).]:value:_files' \
        '*--verbose[Show Spark'\''s own log and whole stack traces.]' \
        '*--help[Show this message and exit.]' \
        '*:file:_files'
      ;;
    inspect)
      _arguments \
        '*--checkpoint[Folder of a replay'\''s tables, or the checkpoint folder of its partition query.]:value:_files' \
        '*--limit[Maximum number of keys to print, those with the most open watches first.]:value:_files' \
        '*--verbose[Show Spark'\''s own log and whole stack traces.]' \
        '*--help[Show this message and exit.]' \
        '*:file:_files'
      ;;
    maintain)
      _arguments \
        '*--out[Folder of a replay or an import; the job may still be running.]:value:_files' \
        '*--keep-hours[Minimum age of unreferenced files to delete, in hours.]:value:_files' \
        '*--verbose[Show Spark'\''s own log and whole stack traces.]' \
        '*--help[Show this message and exit.]' \
        '*:file:_files'
      ;;
    metrics)
      _arguments \
        '*--out[Folder of a replay'\''s tables; the replay may still be running.]:value:_files' \
        '*--window-ms[Length of the time windows of meters and counts, in milliseconds.]:value:_files' \
        '*--by[Dimension to group waits by - broker, topic, partition, client, group (repeatable). (default - topic, client, group)]:value:_files' \
        '*--bytes-per-watch[Assumed memory per watch list entry of an ended operation, in bytes.]:value:_files' \
        '*--top[Maximum number of rows to print per table.]:value:_files' \
        '*--prometheus[File for the metrics in Prometheus text format, for node_exporter'\''s textfile collector.]:value:_files' \
        '*--json[File for the answer as JSON; - prints only the JSON, to standard output.]:value:_files' \
        '*--verbose[Show Spark'\''s own log and whole stack traces.]' \
        '*--help[Show this message and exit.]' \
        '*:file:_files'
      ;;
    package)
      _arguments \
        '*--out[Archive to write, with the extension .tar.gz.]:value:_files' \
        '*--verbose[Show Spark'\''s own log and whole stack traces.]' \
        '*--help[Show this message and exit.]' \
        '*:file:_files'
      ;;
    replay)
      _arguments \
        '*--out[Folder for the tables.]:value:_files' \
        '*--events[Delta table of events, as ingest writes it.]:value:_files' \
        '*--trace[JSON Lines files, folders or globs to import first (repeatable).]:value:_files' \
        '*--config[YAML file of settings; conf/local.yaml documents them.]:value:_files' \
        '*--set[One setting; overrides --config (repeatable).]:value:_files' \
        '*--max-disorder-ms[Maximum out-of-orderness of events, in milliseconds. (default - 0)]:value:_files' \
        '*--drain[After the last event, let open operations expire, or leave them open. (default - drain)]' \
        '*--no-drain[After the last event, let open operations expire, or leave them open. (default - drain)]' \
        '*--batch-events[Approximate number of events per micro-batch. (default - 500000)]:value:_files' \
        '*--run-id[ID of the run. (default - derived from the trace and the settings)]:value:_files' \
        '*--overwrite[Replace the tables of an earlier run in the folder.]' \
        '*--follow[Follow the table of events - replay new events until interrupted.]' \
        '*--explain[Consumer group - list its requests with different replayed and recorded responses. Without --events and --trace, the existing replay in the folder is used.]:value:_files' \
        '*--json[File for the answer as JSON; - prints only the JSON, to standard output.]:value:_files' \
        '*--verbose[Show Spark'\''s own log and whole stack traces.]' \
        '*--help[Show this message and exit.]' \
        '*:file:_files'
      ;;
    report)
      _arguments \
        '*--out[Folder of a replay'\''s tables; the replay may still be running.]:value:_files' \
        '*--html[File of the HTML page. (default - report.html in the folder)]:value:_files' \
        '*--window-ms[Length of the time windows of rates, in milliseconds.]:value:_files' \
        '*--top[Maximum number of rows per table.]:value:_files' \
        '*--verbose[Show Spark'\''s own log and whole stack traces.]' \
        '*--help[Show this message and exit.]' \
        '*:file:_files'
      ;;
    simulate)
      _arguments \
        '*--out[Folder for the tables - events, and with --scenario the outcomes at the simulated brokers (truth).]:value:_files' \
        '*--scenario[Name of a scenario in conf/scenarios, or a YAML file of the same form.]:value:(cold-consumers create-topics hot-partition idle-consumers large-batches leader-failover open-transactions purgatory-leak rebalance-storm rolling-restart share-workers slow-follower slow-remote-reads steady throttled-replica)' \
        '*--jsonl[File for a copy of the events as JSON Lines.]:value:_files' \
        '*--seed[Random seed. (default - the scenario'\''s, or 1)]:value:_files' \
        '*--duration[Simulated time, in seconds. (default - the scenario'\''s)]:value:_files' \
        '*--scale[Factor for the number of producers and consumers.]:value:_files' \
        '*--check[Replay the trace and compare the outcomes with those of the simulated brokers.]' \
        '*--overwrite[Replace the tables in the folder.]' \
        '*--open-loop[Generate a trace of any size, in parallel; clients do not react to responses.]' \
        '*--events[Number of events, for example 100_000_000.]:value:_files' \
        '*--partitions[Number of partitions.]:value:_files' \
        '*--rate[Number of requests per second, over all partitions.]:value:_files' \
        '*--skew[Zipf exponent of the load - 0 is even; with 1, the n-th partition gets 1/n of the first one'\''s load.]:value:_files' \
        '*--keys[Number of partitions per fetch.]:value:_files' \
        '*--median-ms[Median replication latency, in milliseconds.]:value:_files' \
        '*--p75-ms[75th percentile of the replication latency, in milliseconds.]:value:_files' \
        '*--timeout-ms[Timeout of produces and of administrative requests, in milliseconds.]:value:_files' \
        '*--max-wait-ms[Maximum wait of a fetch, in milliseconds.]:value:_files' \
        '*--group-share[Fraction of requests that group members send.]:value:_files' \
        '*--members[Average number of members per group.]:value:_files' \
        '*--heartbeat-ms[Heartbeat interval, in milliseconds.]:value:_files' \
        '*--commit-ms[Interval of a member'\''s offset commits, in milliseconds.]:value:_files' \
        '*--session-timeout-ms[Session timeout, in milliseconds.]:value:_files' \
        '*--incident-s[Interval between departures of members in each group, in seconds.]:value:_files' \
        '*--crash-share[Fraction of departing members that crash instead of leaving.]:value:_files' \
        '*--delete-share[Fraction of requests that delete records.]:value:_files' \
        '*--create-share[Fraction of requests that create topics.]:value:_files' \
        '*--transaction-share[Fraction of partitions with transactions.]:value:_files' \
        '*--transaction-ms[Duration of each transaction, in milliseconds.]:value:_files' \
        '*--verbose[Show Spark'\''s own log and whole stack traces.]' \
        '*--help[Show this message and exit.]' \
        '*:file:_files'
      ;;
    top)
      _arguments \
        '*--out[Folder of a replay that was started with --follow.]:value:_files' \
        '*--once[Print the status once and exit, for scripts.]' \
        '*--every[Interval between updates, in seconds.]:value:_files' \
        '*--rows[Maximum number of rows in each of the tables of waiting operations and of groups.]:value:_files' \
        '*--json[File for the status as JSON, written once; - for standard output.]:value:_files' \
        '*--serve[Serve the status to Prometheus at http -//HOST -PORT/metrics until interrupted; a port alone listens on 127.0.0.1.]:value:_files' \
        '*--verbose[Show Spark'\''s own log and whole stack traces.]' \
        '*--help[Show this message and exit.]' \
        '*:file:_files'
      ;;
    tune)
      _arguments \
        '*--like[Folder of an imported request log, or a scenario written by fit.]:value:_files' \
        '*--goal[Figure to improve and its wanted change, such as '\''requests_per_s -50%'\''.]:value:_files' \
        '*--within[Figure to keep within a limit, and the limit, such as '\''append_to_answer_p99_ms <= 50'\''.]:value:_files' \
        '*--over[Setting to vary and its range (up to three times).]:value:_files' \
        '*--seeds[Number of simulations per setting on the Pareto frontier, each with its own random seed.]:value:_files' \
        '*--html[File of the HTML page. (default - tune.html in the folder of --like)]:value:_files' \
        '*--verbose[Show Spark'\''s own log and whole stack traces.]' \
        '*--help[Show this message and exit.]' \
        '*:file:_files'
      ;;
    what-if)
      _arguments \
        '*--variant[Name of a variant, followed by its settings or a YAML file of settings (repeatable).]:value:_files' \
        '*--out[Folder for the table what_if. A replay of the same events in it is used as the baseline. With --like, only the page is written there.]:value:_files' \
        '*--events[Delta table of events, as ingest writes it.]:value:_files' \
        '*--closed-loop[Name or file of a scenario; it is simulated under each variant, so that clients react.]:value:(cold-consumers create-topics hot-partition idle-consumers large-batches leader-failover open-transactions purgatory-leak rebalance-storm rolling-restart share-workers slow-follower slow-remote-reads steady throttled-replica)' \
        '*--like[Folder of an imported request log, or a scenario written by fit; a model of the recorded cluster predicts each variant.]:value:_files' \
        '*--seeds[Number of simulations per variant, each with its own random seed. (default - 5)]:value:_files' \
        '*--json[File for the figures as JSON; - prints only the JSON, to standard output.]:value:_files' \
        '*--seed[Random seed. (default - the scenario'\''s)]:value:_files' \
        '*--duration[Simulated time, in seconds. (default - the scenario'\''s)]:value:_files' \
        '*--scale[Factor for the number of producers and consumers.]:value:_files' \
        '*--config[YAML file of the baseline'\''s settings.]:value:_files' \
        '*--set[One setting of the baseline; overrides --config (repeatable).]:value:_files' \
        '*--html[File of the HTML page. (default - what-if.html in the folder; with --like - prediction.html, prediction-2.html and so on)]:value:_files' \
        '*--verbose[Show Spark'\''s own log and whole stack traces.]' \
        '*--help[Show this message and exit.]' \
        '*:file:_files'
      ;;
    esac
    ;;
  esac
}

if [[ $funcstack[1] == _purgatory_replay ]]; then
  _purgatory_replay "$@"
else
  compdef _purgatory_replay purgatory-replay spark-submit.sh
fi
