"""An owner's records: a client's shard, and samples of many clients at once."""
