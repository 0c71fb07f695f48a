"""What users can test their own jobs with."""
