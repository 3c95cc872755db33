"""Import of a growing request log in steps: settled requests become events, later ones wait for the next step.

    lines ─► requests ─┬─ older than the events written: late ──────► rejected
                       └─ others ─► converted ───────────────────────► operations, facts ─► timelines ─► events
                                                                                                       │
      ◄─── written so far ───┤◄──────── settled by this step ────────┤◄────── held back ───────┤ newest line
                           from                                    until                    until + hold

Later lines show what a request did: a follower's next offset, the base offset of the next produce. A step therefore
converts all requests up to the newest line, but writes only events before `until`, and never revises them. It keeps for
the next step: requests that start after `until`; the state of each session and partition at `until`; the facts of the
last seconds before it; metadata of the cluster; and operations that started before `until` and are tried after it.
"""
