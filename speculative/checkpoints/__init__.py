"""From the files in a model's folder to its settings, its tokens and its parameters.

Read loading.py first. A checkpoint, OpenAI's (openai.py) or Hugging Face's (hugging_face.py), has an index: the type,
shape and place of each tensor in a file. tensors.py maps the files into memory and makes the parameters of gpt2.py.

To add a form: the names of its files in forms.py, its reader, and a branch for each in folder.py (weights_of, look).
Take its row out of advice.ini, which says what is not read.
"""
