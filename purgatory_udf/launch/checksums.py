"""The jars that this version was made with: SHA-256 by the name that Spark's Ivy gives the file.

A jar of another content is not used, whoever served it. A change of a version in `delta` or `kafka` needs new lines:
`sha256sum ~/.ivy2.5.2/jars/*`, once Ivy has fetched them and held them against the checksums of their publisher.
"""

from __future__ import annotations

KNOWN = {
    "io.delta_delta-kernel-api-4.4.0.jar": "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11",
    "io.delta_delta-kernel-defaults-4.4.0.jar": "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b",
    "io.delta_delta-kernel-unitycatalog-4.4.0.jar": (
        "cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa"
    ),
    "io.delta_delta-spark_4.2_2.13-4.4.0.jar": "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
    "io.delta_delta-storage-4.4.0.jar": "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
    "io.unitycatalog_unitycatalog-client-0.6.0.jar": (
        "48257499a86b801a3e2372cec55ac226ca1c1c7eabe5c118e7302f29a1fdbc19"
    ),
    "io.unitycatalog_unitycatalog-hadoop-0.6.0.jar": (
        "c47b63c961c87102b9e1d63809a0915ba4c86b7652f57c8d39ca3a05b441a150"
    ),
    "org.apache.commons_commons-pool2-2.13.1.jar": "f77a5060d6936a9144023584232f9de3f2248f1abfe156e9d31795f18770674f",
    "org.apache.kafka_kafka-clients-3.9.2.jar": "014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8",
    "org.apache.spark_spark-sql-kafka-0-10_2.13-4.2.0.jar": (
        "64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705"
    ),
    "org.apache.spark_spark-token-provider-kafka-0-10_2.13-4.1.0-preview1.jar": (
        "ab6e27a8a47ce63348dd0ecbd5543dc6212b4783180305cde5749e79684ea97b"
    ),
}
