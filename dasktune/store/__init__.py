"""Where states and journals are kept: files or objects, without pickle, safe against crashes."""
