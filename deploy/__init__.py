"""Everything that starts, installs or measures the services."""
