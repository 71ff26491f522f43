"""What is asked and shown: lines, questions, spans of time, suggestions. It knows no deployment."""
