"""The controller: once a second it observes, decides and acts."""
