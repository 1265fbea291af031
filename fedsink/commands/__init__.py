"""The sub-commands of `fedsink`; each module has `run(arguments, debug) -> exit code`."""
