"""Published traces and measurements: their catalog and downloads."""
