"""The roadmap's template, as package data; the document itself is regenerated from the store."""
