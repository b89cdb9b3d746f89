"""An agent with OpenAI's package: it asks which of some words is the longest, and checks the answer.

It knows nothing of training. Run by hand, it talks to whatever OPENAI_BASE_URL and OPENAI_API_KEY name.
"""

import json
import os

import openai

task = json.load(open(os.environ["ERL_TASK_FILE"]))
answer = openai.OpenAI().chat.completions.create(
    model=os.environ["OPENAI_MODEL"],
    messages=[
        {"role": "system", "content": "Reply with one word and nothing else."},
        {"role": "user", "content": task["prompt"]},
    ],
)
said = (answer.choices[0].message.content or "").strip()
words = task["words"]
right = max(words, key=len)
if said == right:
    reward, feedback = 1.0, f"You said: {said}. It is the longest word."
elif said in words:
    reward, feedback = 0.3, f"You said: {said}. Another word of the list has more letters."
else:
    reward, feedback = 0.0, "Your reply was not one of the words of the list alone."
with open(os.environ["ERL_REPORT_FILE"], "w") as report:
    json.dump({"reward": reward, "feedback": feedback}, report)
