"""The parts of the page *Samples*: pictures over the steps, and what the model answered."""
