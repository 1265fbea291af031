"""The papers' protocols of evaluation: `suite=paper`, `suite=full`, and their classifiers."""
