"""From the name of a model to its settings, its tokens and its weights.

Read folder.py first: find_files finds the files of a model, and open_checkpoint makes a Checkpoint of them. OpenAI's
(openai.py) and Hugging Face's (hugging_face.py) have an index: the type, shape and place of each tensor in a file.
weights.py maps the files into memory: its arrays by name are the parameters of gpt2.py. config.py checks the settings.
tokenizer.py makes an Encoder of Hugging Face's tokens; OpenAI's are those of encoder.py.

To add a form: the names of its files in names.py, its reader, and a branch for each in folder.py (weights_of,
Checkpoint.open_weights). Take its row out of advice.ini, which has the forms that are not read.
"""
