"""A request log that is still being written, imported step by step: what is settled becomes events, the rest is kept.

    lines ─► requests ─┬─ older than what is written: late ─────────► rejected
                       └─ others ─► taken apart, as far as is known ─► operations, facts ─► timelines ─► events
                                                                                                       │
      ◄─── written so far ───┤◄──────── settled by this step ────────┤◄────── held back ───────┤ newest line
                           from                                    until                    until + hold

What a request did shows in later lines: a follower's next offset, the next produce's first. So all requests up to the
newest are looked at, but only what lies before `until` is written, and it is never taken back. A step keeps for the
next: the requests that begin after `until`; where each session and each partition was at that moment; the facts of the
last seconds; what was told of the cluster; and operations that began before and are tried after it.
"""
