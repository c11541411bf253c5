"""What a run leaves for people: the roadmap, a report of one HTML file, plots, tables, and files for programs."""
