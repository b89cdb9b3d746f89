"""An agent with OpenAI's package: it asks which of some words is the longest, and checks the answer.

It knows nothing of training. Run by hand, it talks to whatever OPENAI_BASE_URL and OPENAI_API_KEY name.
"""

import json
import os

import openai

with open(os.environ["ERL_TASK_FILE"]) as given:
    task = json.load(given)
answer = openai.OpenAI().chat.completions.create(
    model=os.environ["OPENAI_MODEL"],
    messages=[
        {"role": "system", "content": "Reply with one word and nothing else."},
        {"role": "user", "content": task["prompt"]},
    ],
)
said = (answer.choices[0].message.content or "").strip()
right = max(task["words"], key=len)
if said == right:
    reward, feedback = 1.0, "You named the longest word, and nothing else."
elif right in said:
    reward, feedback = 0.4, "The longest word is in your reply, but not alone."
elif said in task["words"]:
    reward, feedback = 0.2, "You named one word of the list, but another one has more letters."
else:
    reward, feedback = 0.0, "Your reply was not one of the words of the list alone."
with open(os.environ["ERL_REPORT_FILE"], "w") as report:
    json.dump({"reward": reward, "feedback": feedback}, report)
