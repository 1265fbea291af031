"""The client of Flower's quickstart. Two things are fedsink's: the mod, and the reservation."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedsink import guard
from guarded_fedavg.task import Net, loader_of, test, train

app = ClientApp(mods=[guard()])


@app.train()
def train_message(message: Message, context: Context) -> Message:
    """Trains the received weights for some steps of DP-SGD, once these are reserved."""
    config = context.run_config
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loader = loader_of(
        int(context.node_config["partition-id"]), int(context.node_config["num-partitions"]), config
    )
    if noise := float(config["noise-multiplier"]):
        guard.reserve(1 / len(loader), noise, int(config["local-steps"]))
    loss = train(net, loader, config)
    metrics = {"train_loss": loss, "num-examples": len(loader.dataset)}  # neither leaves
    content = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord(metrics)}
    return Message(RecordDict(content), reply_to=message)


@app.evaluate()
def evaluate_message(message: Message, context: Context) -> Message:
    """Tests the received weights; the guard asks only where the policy names a metric."""
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    accuracy = test(net, str(context.run_config["data"]))
    metrics = MetricRecord({"accuracy": accuracy, "num-examples": 10_000})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
