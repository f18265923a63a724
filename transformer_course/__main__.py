"""The command line as `python -m transformer_course`."""
from transformer_course.cli.app import main

if __name__ == "__main__":
    main()
