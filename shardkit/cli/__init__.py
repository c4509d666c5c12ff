"""The ``shardkit`` command: embedded servers, configuration, where a key lives, how shards are.

One module for each command or group of commands; `shardkit.cli.app` puts them together.
`shardkit.cli.output` is the only one that writes: tables for people, one JSON document for
programs, errors in one line.
"""
