"""What everything else stands on: checks of arguments, arrays, files. It imports nothing of fedbuff."""
